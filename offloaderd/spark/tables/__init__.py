"""The Spark application that keeps declared tables up to date."""
