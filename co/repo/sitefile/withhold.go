package sitefile

import (
	"regexp"
	"strconv"
)

// Withheld stands for what proves a password, where the reader may not have it.
const Withheld = "withheld"

var (
	// proofs are SHA-256 in hexadecimal digits and bcrypt hashes, wherever they stand: in comments and in bad files, too.
	proofs = regexp.MustCompile(`[0-9a-fA-F]{64}|\$2[abxy]?\$[0-9]{2}\$[./0-9A-Za-z]{53}`)
	marks  = regexp.MustCompile(Withheld + `-[0-9]{1,6}`)
)

// Withhold returns a site's file without what proves the passwords of devices. Restore puts it back.
func Withhold(content []byte) []byte {
	n := 0
	return proofs.ReplaceAllFunc(content, func([]byte) []byte {
		n++
		return []byte(Withheld + "-" + strconv.Itoa(n))
	})
}

// Restore returns a file that was edited without what Withhold took, with it; was is the file as it is.
func Restore(content, was []byte) []byte {
	list := proofs.FindAll(was, -1)
	return marks.ReplaceAllFunc(content, func(mark []byte) []byte {
		n, err := strconv.Atoi(string(mark[len(Withheld)+1:]))
		if err != nil || n < 1 || n > len(list) {
			return mark
		}
		return list[n-1]
	})
}

// WithoutProof returns a device without what proves its password.
func (d Device) WithoutProof() Device {
	if d.Password.SHA256 != "" {
		d.Password.SHA256 = Withheld
	}
	if d.Password.Bcrypt != "" {
		d.Password.Bcrypt = Withheld
	}
	return d
}
