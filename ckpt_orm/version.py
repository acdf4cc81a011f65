"""The release, in one place: the wheel's metadata and `ckpt_orm.__version__` read it here."""

__version__ = "0.1.0"
