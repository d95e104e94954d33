"""What a policy decided, kept in a log, made again and put into words."""
