"""What the public modules rest on; nothing in here is for users."""
