"""What users set: the [lake] section, the tables file, and each table's policy."""
