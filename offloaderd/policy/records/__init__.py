"""Records of policies, one module for each kind of node."""
