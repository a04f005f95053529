echo $(echo $(echo $(echo deep))) "$(case x in x) echo esac;; esac)"
