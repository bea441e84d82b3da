"""Care of what is stored: collect what nobody refers to, rebuild the map from the bucket, verify, scrub, explain."""
