"""What training code imports: attach, measure, steer."""
