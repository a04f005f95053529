mkdir gone; cd gone; rmdir ../gone; pwd | sed 's,.*/,,'; ls; cd .; echo $?
