"""Early conflict detection (RFC-56): who touches which file group now, and what that means for our own services."""
