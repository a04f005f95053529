package tarfiles

// onlyFolder has no effect: Windows has no such flag.
const onlyFolder = 0
