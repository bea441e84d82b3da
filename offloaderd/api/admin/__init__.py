"""AdminService: topics, requests by hand, segments."""
