"""Speed, measured: ours and the official savers side by side, on one server, in one run."""
