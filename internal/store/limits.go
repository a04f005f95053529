package store

// MaxObject is the maximum size of an object in bytes. Larger data is stored as a content.
const MaxObject = maxObject
