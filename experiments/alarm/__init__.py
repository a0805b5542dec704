"""Do the constants warn of a training that is about to diverge?"""
