package repo

const (
	RecordFormat = 1
	StateFormat  = 1
)
