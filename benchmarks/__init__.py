"""Scripts that each compare two things in one run, and the suite of all timings."""
