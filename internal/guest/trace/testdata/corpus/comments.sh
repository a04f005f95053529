# only a comment
   # another

