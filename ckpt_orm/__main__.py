"""`python -m ckpt_orm` is `ckpt-orm`."""

from ckpt_orm.cli import main

if __name__ == "__main__":
    main()
