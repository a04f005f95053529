! true; echo $?; ! false; echo $?; ! true | false; echo $?; ! (exit 3); echo $?; ! ! true; echo $?
