"""Foreign bytes for every decoder that reads any: `make fuzz MINUTES=n`. targets.py has what, __main__.py how."""
