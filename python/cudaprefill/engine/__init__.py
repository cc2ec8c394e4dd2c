"""From a request to its tokens; docs/architecture.md walks through the files."""
