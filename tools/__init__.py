"""What makes and checks the documentation: the generated reference, its links, the site."""
