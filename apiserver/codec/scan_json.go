package codec

// jsonNestsDeeper reports whether a text has more than the given number of nested levels of objects and arrays. text
// may be invalid JSON.
func jsonNestsDeeper(text []byte, levels int) bool {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			if depth++; depth > levels {
				return true
			}
		case '}', ']':
			depth--
		case '"':
			i = afterString(text, i)
		}
	}
	return false
}

// hasMoreValues reports whether a text contains more than the given number of objects and nulls. text may be invalid
// JSON.
func hasMoreValues(text []byte, most int) bool {
	values := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', 'n':
			if values++; values > most {
				return true
			}
		case '"':
			i = afterString(text, i)
		}
	}
	return false
}

// afterString returns the index of the closing quote of the string that begins at the given index.
func afterString(text []byte, i int) int {
	for i++; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i
}
