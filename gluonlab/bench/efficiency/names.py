"""What ``bench efficiency`` predicts where nothing else is asked for; it imports nothing."""

MACHINES, HOSTS = "p3.16xlarge,p3dn.24xlarge,p4d.24xlarge", 8
