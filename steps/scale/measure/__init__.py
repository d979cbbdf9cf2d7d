"""One generator creates objects, one observer watches them."""
