"""Who is in a job and how they fare: one door that every process enters, and one list that knows all of them."""
