package store_test

const crashArg = "-crash-child"
const wantList = "sha256:17bc3fd75c4d5e11080efb11de73f07426f961b6d29582e268eff2b192110796"

func crashChild(string) {}
