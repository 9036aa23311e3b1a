// Points, lines and small pictures in WebGL 2.

const POINT_SHADER = [
  `#version 300 es
  in vec3 position; in vec3 tint; in float track; in float marked;
  uniform mat4 matrix; uniform float size; uniform float least; uniform float faint; uniform vec3 paper; uniform vec3 accent;
  out vec3 colour;
  void main() {
    gl_Position = matrix * vec4(position, 1.0);
    gl_PointSize = clamp(size / gl_Position.w, 1.0, 24.0) + (marked > 0.5 ? 1.0 : 0.0);
    if (track < least) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
    colour = marked > 0.5 ? mix(tint, accent, 0.5) : mix(tint, paper, faint);
  }`,
  `#version 300 es
  precision mediump float;
  in vec3 colour; out vec4 result;
  void main() {
    if (length(gl_PointCoord - 0.5) > 0.6) discard; // a disc, without holes in what is one or two pixels wide
    result = vec4(colour, 1.0);
  }`,
];
const LINE_SHADER = [
  `#version 300 es
  in vec3 position; in vec4 tint; uniform mat4 matrix; out vec4 colour;
  void main() { gl_Position = matrix * vec4(position, 1.0); colour = tint; }`,
  `#version 300 es
  precision mediump float;
  in vec4 colour; out vec4 result;
  void main() { result = colour; }`,
];
const PICTURE_SHADER = [
  `#version 300 es
  in vec3 position; in vec2 place; uniform mat4 matrix; out vec2 spot;
  void main() { gl_Position = matrix * vec4(position, 1.0); spot = place; }`,
  `#version 300 es
  precision mediump float;
  in vec2 spot; uniform sampler2D sheet; uniform float opacity; out vec4 result;
  void main() { result = vec4(texture(sheet, spot).rgb, opacity); }`,
];

function makeProgram(gl, sources) {
  const program = gl.createProgram();
  [gl.VERTEX_SHADER, gl.FRAGMENT_SHADER].forEach((kind, n) => {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, sources[n]);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  });
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
  const uniforms = {};
  for (let n = 0; n < gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS); n++) {
    const { name } = gl.getActiveUniform(program, n);
    uniforms[name] = gl.getUniformLocation(program, name);
  }
  return { program, uniforms };
}

// Attributes of a program: { name: [values, components, normalised] }; ``set`` replaces the values of one.
function makeArrays(gl, { program }, attributes) {
  const array = gl.createVertexArray(), buffers = {};
  gl.bindVertexArray(array);
  for (const [name, [values, components, normalised]] of Object.entries(attributes)) {
    const place = gl.getAttribLocation(program, name), kind = values instanceof Uint8Array ? gl.UNSIGNED_BYTE : gl.FLOAT;
    buffers[name] = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers[name]);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.DYNAMIC_DRAW);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, components, kind, Boolean(normalised), 0, 0);
  }
  const set = (name, values) => { gl.bindBuffer(gl.ARRAY_BUFFER, buffers[name]); gl.bufferData(gl.ARRAY_BUFFER, values, gl.DYNAMIC_DRAW); };
  return { array, set };
}

// Whether WebGL 2 is there, and on a GPU.
function hasGpu() {
  const gl = document.createElement("canvas").getContext("webgl2"), about = gl && gl.getExtension("WEBGL_debug_renderer_info");
  return Boolean(gl) && !(about && /swiftshader|llvmpipe|software/i.test(gl.getParameter(about.UNMASKED_RENDERER_WEBGL)));
}

function makeGpuRenderer(canvas, { points, tints, tracks }) {
  const gl = canvas.getContext("webgl2", { alpha: false });
  const count = tracks.length, programs = [POINT_SHADER, LINE_SHADER, PICTURE_SHADER].map((each) => makeProgram(gl, each));
  const cloud = makeArrays(gl, programs[0], { position: [points, 3], tint: [tints, 3, true], track: [tracks, 1], marked: [new Uint8Array(count), 1] });
  const lines = makeArrays(gl, programs[1], { position: [new Float32Array(0), 3], tint: [new Float32Array(0), 4] });
  const pictures = makeArrays(gl, programs[2], { position: [new Float32Array(0), 3], place: [new Float32Array(0), 2] });
  const amount = { lines: 0, pictures: 0 }, sheet = gl.createTexture();
  gl.enable(gl.DEPTH_TEST);
  gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);

  function use({ program, uniforms }, { array }, matrix) {
    gl.useProgram(program);
    gl.bindVertexArray(array);
    gl.uniformMatrix4fv(uniforms.matrix, false, matrix);
    return uniforms;
  }
  return {
    mark: (marks) => cloud.set("marked", marks),
    setTints: (values) => cloud.set("tint", values),
    setLines(positions, colours) {
      lines.set("position", positions);
      lines.set("tint", colours);
      amount.lines = positions.length / 3;
    },
    setPictures(positions, places, source) {
      pictures.set("position", positions);
      pictures.set("place", places);
      amount.pictures = positions.length / 3;
      gl.bindTexture(gl.TEXTURE_2D, sheet);
      gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, source);
      gl.generateMipmap(gl.TEXTURE_2D);
      gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR_MIPMAP_LINEAR);
    },
    // style: paper, accent (red, green, blue in 0 to 1), size, least (track), faint, most (points), frusta, photos,
    // sharpness (pixels of the canvas per pixel of the screen)
    draw(matrix, style) {
      const density = style.sharpness * (window.devicePixelRatio || 1);
      const size = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.max(Math.round(side * density), 1));
      if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
      gl.viewport(0, 0, ...size);
      gl.clearColor(...style.paper, 1);
      gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
      gl.disable(gl.BLEND);
      const uniforms = use(programs[0], cloud, matrix);
      gl.uniform1f(uniforms.size, style.size * size[1] * 0.004);
      gl.uniform1f(uniforms.least, style.least);
      gl.uniform1f(uniforms.faint, style.faint);
      gl.uniform3fv(uniforms.paper, style.paper);
      gl.uniform3fv(uniforms.accent, style.accent);
      gl.drawArrays(gl.POINTS, 0, Math.min(count, style.most));
      gl.enable(gl.BLEND);
      if (style.photos && amount.pictures) {
        gl.uniform1f(use(programs[2], pictures, matrix).opacity, 0.85);
        gl.drawArrays(gl.TRIANGLES, 0, amount.pictures);
      }
      if (style.frusta && amount.lines) {
        use(programs[1], lines, matrix);
        gl.drawArrays(gl.LINES, 0, amount.lines);
      }
    },
  };
}
