"""What the rest of the package stands on."""
