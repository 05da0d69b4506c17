"""Services prove themselves: what a rewritten file group holds is what a reader saw before, or nothing is committed."""
