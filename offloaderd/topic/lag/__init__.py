"""How far a topic is behind, and how old its oldest entry is that is not durable."""
