"""Internal building blocks of the package."""
