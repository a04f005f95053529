echo ${x:?message}; echo never
