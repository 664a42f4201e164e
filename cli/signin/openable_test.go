package signin

import "testing"

func TestOpenable(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"https://login.example/device?user_code=A": true, "http://127.0.0.1:8080/device": true,
		"file:///etc/passwd": false, "--version": false, "login.example/device": false, "javascript:alert(1)": false, "": false, "https:///x": false, "https://login.example/\x1b[2J": false,
	} {
		if err := openable(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
	if got := plain("AB\x1b[31mCD\n"); got != "AB[31mCD" {
		t.Errorf("%q", got)
	}
}
