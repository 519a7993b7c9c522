"""What commands show people in a terminal."""
