"""What the commands do with damaged and crafted inputs, kills, full disks and several writers: ``python -m faults``."""
