"""What the two applications of this folder run: one package, which travels to the Spark driver as one zip."""
