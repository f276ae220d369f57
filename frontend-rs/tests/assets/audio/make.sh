#!/bin/sh
# Makes the audio files of this folder from speech.wav, each with the encoder that users have.
# Needs ffmpeg, flac, lame, opus-tools and vorbis-tools (Debian's names). Run it in this folder.
set -eu
stereo='pan=stereo|c0=c0|c1=c0'
ff() { ffmpeg -v error -y -bitexact "$@"; }

# G.711 and other WAV flavours that a test cannot write in a few lines.
ff -t 1 -i speech.wav -ar 8000 -c:a pcm_alaw alaw-8k.wav
ff -t 1 -i speech.wav -ar 8000 -c:a pcm_mulaw mulaw-8k.wav
ff -t 0.5 -i speech.wav -c:a adpcm_ima_wav adpcm.wav
ff -t 0.5 -i speech.wav -c:a pcm_s16le -f wav pipe: | cat > piped.wav

flac --silent --force -8 speech.wav -o speech.flac
ff -i speech.wav -ar 44100 -af "$stereo" -t 0.3 -c:a flac -f flac pipe: | cat > piped-44k-stereo.flac

lame --quiet -b 48 --ta Denizen --tt Speech --add-id3v2 speech.wav cbr.mp3
ff -i speech.wav -ar 44100 -af "$stereo" -f wav pipe: | lame --quiet -V 7 --resample 44.1 --ta Denizen --tt Speech --add-id3v2 - vbr-44k-stereo.mp3
lame --quiet -t -b 24 speech.wav no-info.mp3
ff -i speech.wav -c:a mp2 -b:a 48k -f mp2 layer2.mp3

oggenc --quiet -q 2 speech.wav -o vorbis.ogg
ff -t 1 -i speech.wav -ar 44100 -af "$stereo" -f wav pipe: | oggenc --quiet --ignorelength -q 1 - -o vorbis-44k-stereo.ogg
ff -i speech.wav -t 0.5 -c:a flac flac.ogg
opusenc --quiet --bitrate 12 speech.wav silk.opus
opusenc --quiet --bitrate 24 --framesize 60 speech.wav hybrid-60ms.opus
ff -t 1 -i speech.wav -ar 48000 -af "$stereo" -f wav pipe: | opusenc --quiet --ignorelength --bitrate 64 - celt-stereo.opus
ff -t 1 -i speech.wav -ar 48000 -af "pan=5.1|c0=c0|c1=c0|c2=c0|c3=c0|c4=c0|c5=c0" -c:a libopus -b:a 96k surround.opus
ff -t 0.5 -i speech.wav -c:a libspeex speex.ogg 2>/dev/null || true

# As browsers record: no length, clusters of unknown size.
ff -i speech.wav -c:a libopus -b:a 24k -f webm -live 1 -cluster_time_limit 500 pipe: | cat > recorder.webm
ff -i speech.wav -c:a libopus -b:a 24k opus.webm
ff -i speech.wav -c:a libvorbis -q:a 1 vorbis.webm
ff -f lavfi -i testsrc=s=32x32:r=4:d=3 -i speech.wav -c:v mpeg4 -c:a aac -b:a 32k video.mkv

ff -i speech.wav -c:a aac -b:a 32k aac.m4a
ff -i speech.wav -c:a aac -b:a 32k -movflags +faststart faststart.m4a
ff -i speech.wav -c:a aac -b:a 32k -movflags +frag_keyframe+empty_moov -frag_duration 500000 -f mp4 fragmented.mp4
ff -i speech.wav -ar 44100 -af "$stereo" -c:a aac -b:a 48k stereo-44k.m4a
ff -i speech.wav -t 0.5 -c:a alac alac.m4a
ff -i speech.wav -c:a libopus -b:a 16k -f mp4 opus.mp4
ff -f lavfi -i testsrc=s=32x32:r=4:d=2 -i speech.wav -c:v mpeg4 -c:a aac -b:a 32k -shortest video.mp4
ff -f lavfi -i testsrc=s=32x32:r=4:d=1 -c:v mpeg4 silent-film.mp4
ff -t 0.5 -i speech.wav -ar 48000 -c:a ac3 -b:a 64k ac3.mp4
ff -i speech.wav -c:a aac -b:a 32k -f adts stream.aac
