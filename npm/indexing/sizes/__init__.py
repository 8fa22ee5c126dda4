"""What an index takes in time, memory and disk: told before it is built, and looked up afterwards."""
