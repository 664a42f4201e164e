package backup

// ForPrograms is forPrograms, for the tests.
var ForPrograms = forPrograms
