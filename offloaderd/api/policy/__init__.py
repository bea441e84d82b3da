"""PolicyService: policies of every level."""
