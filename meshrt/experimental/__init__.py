"""Parts of the library whose interface may still change."""
