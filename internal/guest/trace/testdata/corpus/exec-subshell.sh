(exec echo sub); echo after
