"""What topics need besides their entries: taken from the cluster's metadata, kept in the bucket as captures."""
