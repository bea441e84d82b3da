"""Options and types of arguments that commands share."""
