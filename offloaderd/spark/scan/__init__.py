"""Which segments a query reads, and the rows of them."""
