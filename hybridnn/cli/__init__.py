"""The command line: one small file per subcommand; it parses, calls and prints."""
