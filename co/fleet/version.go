package fleet

import "github.com/Masterminds/semver/v3"

// Newer reports whether version is to be offered before latest, both versions of
// one application. Where both are semantic versions (SemVer 2.0) the greater one
// is, a release before any pre-release; Margo allows any text as a version, and
// among others the one imported last is.
func Newer(version, latest string) bool {
	v, err := semver.NewVersion(version)
	if err != nil {
		return true
	}
	l, err := semver.NewVersion(latest)
	if err != nil {
		return true
	}
	if release, was := v.Prerelease() == "", l.Prerelease() == ""; release != was {
		return release
	}
	return v.GreaterThan(l)
}
