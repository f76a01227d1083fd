package connect

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/twmb/franz-go/pkg/sasl"
	mskiam "github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/geogate/geogate/internal/strict"
)

// load returns the mechanism that s configures.
func (s *SASL) load(bad *strict.Problems, files contents) sasl.Mechanism {
	switch s.Mechanism {
	case Plain:
		return plain.Auth{User: s.Username, Pass: string(files["password_file"])}.AsMechanism()
	case Scram256:
		return scram.Auth{User: s.Username, Pass: string(files["password_file"])}.AsSha256Mechanism()
	case Scram512:
		return scram.Auth{User: s.Username, Pass: string(files["password_file"])}.AsSha512Mechanism()
	case OAuthBearer:
		return s.loadOAuth(bad, files)
	case AWSMSKIAM:
		return s.loadAWS(bad)
	}
	bad.Unknown(strict.At("sasl", "mechanism"), "mechanism", s.Mechanism, Mechanisms()...)
	return nil
}

// loadAWS takes the credentials of the file or, without one, those that the AWS SDK finds, gets
// when they are needed, and keeps until they expire.
func (s *SASL) loadAWS(bad *strict.Problems) sasl.Mechanism {
	ctx := context.Background() // reads files only
	if s.CredentialsFile != "" {
		profile := s.Profile
		if profile == "" {
			profile = config.DefaultSharedConfigProfile
		}
		shared, err := config.LoadSharedConfigProfile(ctx, profile, func(o *config.LoadSharedConfigOptions) {
			o.CredentialsFiles, o.ConfigFiles = []string{s.CredentialsFile}, []string{}
		})
		switch {
		case err != nil:
			bad.Add(strict.At("sasl", "credentials_file"), "read AWS credentials of profile %s in %s: %v", profile, s.CredentialsFile, err)
			return nil
		case !shared.Credentials.HasKeys():
			bad.Add(strict.At("sasl", "credentials_file"), "%s has no aws_access_key_id and aws_secret_access_key for profile %s", s.CredentialsFile, profile)
			return nil
		}
		return signed(func(context.Context) (aws.Credentials, error) { return shared.Credentials, nil })
	}
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		bad.Add(strict.At("sasl"), "find AWS credentials: %v", err)
		return nil
	}
	return signed(cfg.Credentials.Retrieve)
}

// signed authenticates with a request that is signed with the credentials.
func signed(credentials func(context.Context) (aws.Credentials, error)) sasl.Mechanism {
	return mskiam.ManagedStreamingIAM(func(ctx context.Context) (mskiam.Auth, error) {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		c, err := credentials(ctx)
		if err != nil {
			return mskiam.Auth{}, fmt.Errorf("find AWS credentials: %w", err)
		}
		return mskiam.Auth{AccessKey: c.AccessKeyID, SecretKey: c.SecretAccessKey, SessionToken: c.SessionToken, UserAgent: "geogate"}, nil
	})
}

// loadOAuth sends the token of the file, or one of the token endpoint.
func (s *SASL) loadOAuth(bad *strict.Problems, files contents) sasl.Mechanism {
	token := func(context.Context) (string, error) { return string(files["token_file"]), nil }
	if s.TokenURL != "" {
		e := newTokenEndpoint(s, string(files["client_secret_file"]))
		if s.TokenCAFile != "" {
			e.trust(pool(bad, strict.At("sasl", "token_ca_file"), s.TokenCAFile, files["token_ca_file"]))
		}
		token = e.token
	}
	return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
		t, err := token(ctx)
		return oauth.Auth{Token: t, Extensions: s.Extensions}, err
	})
}
